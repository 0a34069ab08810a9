"""One module for each system: how its processes start and run jobs."""
