"""The failover by itself: a program on the standby that watches the controller, and goes on in its place.

`decide` is pure: what was seen, and what follows. `settings` is the file that an apply writes. `probes` asks the
controller, and other hosts about it. `promotion` stops the old host in the cloud, moves the volume and the address, and
starts the services. `watcher` is the loop. docs/adr/0119 has the reasons.

It runs on the standby from the wheel of the controller's programs. May import `cloud` and what is below it.
"""
