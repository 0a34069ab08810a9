"""The engine: workers, claims, leases, attempts, replay and waits. The only package that joins the others."""
