locals {
  # With no wish nothing is said of defined tags: an empty map would take those of the tenancy's tag defaults away.
  defined_tags = length(var.defined_tags) > 0 ? var.defined_tags : null
}
