"""Rules that nodes, the controller and the operator's machine share. Pure."""
