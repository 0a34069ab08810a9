"""What users write: jobs, steps, tools, waits."""
