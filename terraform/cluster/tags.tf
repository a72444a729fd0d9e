locals {
  # Null instead of an empty map: an empty map would remove the tags of the tenancy's tag defaults.
  defined_tags = length(var.defined_tags) > 0 ? var.defined_tags : null
}
