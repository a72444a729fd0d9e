# An image is chosen once, when a wish is first met, and kept: an image that is published later replaces no node.
# Only another wish (or another OCID) chooses again.

locals {
  _images = merge(
    { controller = { wish = var.controller.image, shape = var.controller.shape } },
    { for name, pool in var.pools : "pool/${name}" => { wish = pool.image, shape = pool.shape } },
  )

  controller_image_id = terraform_data.image["controller"].output
  pool_image_ids      = { for name, pool in var.pools : name => terraform_data.image["pool/${name}"].output }
}

data "oci_core_images" "matching" {
  for_each = { for user, image in local._images : user => image if image.wish.ocid == null }

  compartment_id           = var.compartment_id
  operating_system         = each.value.wish.operating_system
  operating_system_version = each.value.wish.version
  shape                    = each.value.shape
  sort_by                  = "TIMECREATED"
  sort_order               = "DESC"
  state                    = "AVAILABLE"
}

resource "terraform_data" "image" {
  for_each = local._images

  input            = each.value.wish.ocid != null ? each.value.wish.ocid : try(data.oci_core_images.matching[each.key].images[0].id, null)
  triggers_replace = each.value.wish

  lifecycle {
    ignore_changes = [input]

    postcondition {
      condition     = self.output != null
      error_message = "No image of ${coalesce(each.value.wish.operating_system, "-")} ${coalesce(each.value.wish.version, "-")} is offered for shape ${each.value.shape} (${each.key}). Name another operating system or version, or give the OCID of a custom image."
    }
  }
}
