"""Who is in the job: hosts, slots, rounds, leases. Has no opinion on why a host failed."""
