"""APIs of client quotas, and the quotas of requests that change metadata."""
