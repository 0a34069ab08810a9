"""Who asks: command line, HTTP and dashboard, thin over everything else."""
