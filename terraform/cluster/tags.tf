locals {
  # Null instead of an empty map: an empty map would remove the tags of the tenancy's tag defaults.
  defined_tags = length(var.defined_tags) > 0 ? var.defined_tags : null

  # Of the resources that record who made a cluster, and where.
  origin_tags = var.origin == "" ? {} : { "gpucluster-from" = var.origin }

  # The rule of the group that may join a control plane of Kubernetes Engine finds its instances by these tags.
  pool_tags = var.oke == null || length(var.elastic_tags) == 0 ? local.defined_tags : merge(local.defined_tags, var.elastic_tags)
}
