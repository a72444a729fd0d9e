# An image is chosen once, when a wish is first met, and kept: an image that is published later replaces no node.
# Only another wish (or another OCID) chooses again.

locals {
  _images = merge(
    { controller = { wish = var.controller.image, shape = var.controller.shape } },
    { for name, pool in var.pools : "pool/${name}" => { wish = pool.image, shape = pool.shape } },
  )

  # What an earlier release remembered of a wish, and of what came later only what is wished: else old nodes would be replaced.
  _image_wishes = {
    for user, image in local._images : user => merge(
      { ocid = image.wish.ocid, operating_system = image.wish.operating_system, version = image.wish.version },
      {
        for key in ["name", "listing", "listing_version"] :
        key => image.wish[key] if image.wish[key] != null
      },
    )
  }

  # An image of the cluster's own elastic nodes has the operating system's name, too.
  _offered_images = {
    for user, found in data.oci_core_images.matching : user => [
      for image in found.images : image.id if lookup(coalesce(image.freeform_tags, {}), "role", "") != "image"
    ]
  }

  controller_image_id = terraform_data.image["controller"].output
  pool_image_ids      = { for name, pool in var.pools : name => terraform_data.image["pool/${name}"].output }
}

data "oci_core_images" "matching" {
  for_each = { for user, image in local._images : user => image if image.wish.ocid == null && image.wish.listing == null }

  compartment_id           = var.compartment_id
  display_name             = each.value.wish.name
  operating_system         = each.value.wish.operating_system
  operating_system_version = each.value.wish.version
  shape                    = each.value.shape
  sort_by                  = "TIMECREATED"
  sort_order               = "DESC"
  state                    = "AVAILABLE"
}

# A custom image is offered for the shapes that it is known to boot on. Adding one is the owner's word that it does.
resource "oci_core_shape_management" "this" {
  for_each = {
    for image in values(local._images) : "${image.wish.ocid}/${image.shape}" => image...
    if image.wish.ocid != null && image.wish.make_compatible
  }

  compartment_id = var.compartment_id
  image_id       = each.value[0].wish.ocid
  shape_name     = each.value[0].shape
}

resource "terraform_data" "image" {
  for_each = local._images

  input = (
    each.value.wish.ocid != null ? each.value.wish.ocid
    : each.value.wish.listing != null ? oci_core_app_catalog_subscription.this[local._listing_keys[each.key]].listing_resource_id
    : try(local._offered_images[each.key][0], null)
  )
  triggers_replace = local._image_wishes[each.key]
  depends_on       = [oci_core_shape_management.this]

  lifecycle {
    ignore_changes = [input]

    postcondition {
      condition     = self.output != null
      error_message = "No image ${join(" ", compact([each.value.wish.name, each.value.wish.operating_system != null ? "of" : null, each.value.wish.operating_system, each.value.wish.version]))} is offered for shape ${each.value.shape} (${each.key}). Name another image, operating system or version, or give the OCID of a custom image."
    }
  }
}
