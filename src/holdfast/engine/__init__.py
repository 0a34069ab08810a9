"""What happens: claim, lease, attempt, replay, reclaim, timers, worker. The only room that joins the others."""
