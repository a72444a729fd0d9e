# An image is selected once, when its spec is new, and kept: an image that is published later replaces no node.
# Only another spec (or another OCID) selects again, and a shape of another kind: OCI has other images for it.

locals {
  _shapes = merge(
    { controller = var.controller.shape },
    { for name, login in { login = var.login } : name => login.shape if login != null },
    { for name, pool in merge(var.pools, local.node_pools) : "pool/${name}" => pool.shape },
  )
  _images = { for user, shape in local._shapes : user => { spec = var.images[user], shape = shape } }

  # What selects an image. The filter of a listing is not part of it: it comes with this release of gpucluster, and
  # another filter replaces no node.
  _image_specs = {
    for user, image in local._images : user => {
      for key in ["ocid", "name", "operating_system", "version", "listing", "listing_version", "variant"] :
      key => image.spec[key]
    }
  }

  # The list has the custom images of the compartment as well, with the operating systems that their owners entered. By
  # operating system and version only Oracle's own are meant, which are in no compartment; by name also a custom image, but
  # none that was baked for elastic nodes.
  _offered_images = {
    for user, found in data.oci_core_images.matching : user => [
      for image in found.images : image.id
      if(
        local._images[user].spec.name == null
        ? try(length(image.compartment_id), 0) == 0
        : lookup(coalesce(image.freeform_tags, {}), "role", "") != "image"
      )
    ]
  }

  controller_image_id = terraform_data.image["controller"].output
  login_image_id      = var.login == null ? null : terraform_data.image["login"].output
  pool_image_ids      = { for name in concat(keys(var.pools), keys(local.node_pools)) : name => terraform_data.image["pool/${name}"].output }
}

data "oci_core_images" "matching" {
  for_each = { for user, image in local._images : user => image if image.spec.ocid == null && image.spec.listing == null }

  compartment_id           = var.compartment_id
  display_name             = each.value.spec.name
  operating_system         = each.value.spec.operating_system
  operating_system_version = each.value.spec.version
  shape                    = each.value.shape
  sort_by                  = "TIMECREATED"
  sort_order               = "DESC"
  state                    = "AVAILABLE"
}

# A custom image is offered for the shapes that it is known to boot on. By adding one, the owner asserts that it does.
resource "oci_core_shape_management" "this" {
  for_each = {
    for image in values(local._images) : "${image.spec.ocid}/${image.shape}" => image...
    if image.spec.ocid != null && image.spec.make_compatible
  }

  compartment_id = var.compartment_id
  image_id       = each.value[0].spec.ocid
  shape_name     = each.value[0].shape
}

resource "terraform_data" "image" {
  for_each = local._images

  input = (
    each.value.spec.ocid != null ? each.value.spec.ocid
    : contains(keys(var.existing_images), each.key) ? var.existing_images[each.key]
    : each.value.spec.listing != null ? oci_core_app_catalog_subscription.this[local._listing_keys[each.key]].listing_resource_id
    : try(local._offered_images[each.key][0], null)
  )
  triggers_replace = local._image_specs[each.key]
  depends_on       = [oci_core_shape_management.this]

  lifecycle {
    ignore_changes = [input]

    precondition {
      condition     = each.value.spec.listing == null || !contains([for name in keys(local.node_pools) : "pool/${name}"], each.key)
      error_message = "images: that of a node pool of Kubernetes Engine can't be that of a listing of the marketplace (${each.key})."
    }

    postcondition {
      condition     = self.output != null
      error_message = "No image ${join(" ", compact([each.value.spec.name, each.value.spec.operating_system != null ? "of" : null, each.value.spec.operating_system, each.value.spec.version]))} is offered for shape ${each.value.shape} (${each.key}). Name another image, operating system or version, or give the OCID of a custom image."
    }
  }
}
