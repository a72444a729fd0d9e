"""The controller's state on a volume of its own, which outlives the controller.

`layout` names what is state. `device` decides whether a device is the volume, is blank, or must not be touched.
`accounts` lets files keep their owners on another host. `mounting` mounts and moves. docs/adr/0096 has the reasons.
"""
