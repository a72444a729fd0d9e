"""Journals of all hosts, kept on the controller: what a host wrote can be read when the host is gone.

- `store`: the files, by host and day.
- `collect`: a round of the timer: asks each host for its new lines.
- `reading`: lines of one host, chosen as journalctl would.
"""
