"""The standby: a second host that is kept like the controller, with what it needs to go on in its place.

`scope` names what both hosts have in common. `manifest` compares two hosts. `mirror` sends what differs, from the host
in service to the other. docs/adr/0107 has the reasons.
"""
