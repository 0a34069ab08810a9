"""The API that users write jobs with: jobs, steps, tools, waits."""
