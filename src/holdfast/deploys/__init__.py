"""Deploys: the code as it is now against the runs of a store, or against recorded histories, before it takes one."""
