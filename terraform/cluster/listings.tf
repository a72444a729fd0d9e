# Images of the marketplace: before an instance can be launched from a version of a listing, its terms must be agreed to and the
# version subscribed to. As with other images, the version is selected once and kept: also when the listing no longer offers it.

locals {
  # One subscription serves all images with the same version of the same listing.
  _listing_keys = {
    for user, image in local._images : user => "${image.spec.listing} ${image.spec.listing_filter.name}"
    if image.spec.listing != null
  }
  _listings = {
    for user, key in local._listing_keys : key => local._images[user].spec...
  }

  _listing_ids = {
    for key, specs in local._listings : key => (
      startswith(specs[0].listing, "ocid1.")
      ? specs[0].listing
      : try(data.oci_core_app_catalog_listings.named[specs[0].listing].app_catalog_listings[0].listing_id, null)
    )
  }

  # One listing has the images of several vendors: only some of its versions fit a machine.
  _fitting_versions = {
    for key, found in data.oci_core_app_catalog_listing_resource_versions.offered : key => [
      for version in found.app_catalog_listing_resource_versions : version
      if alltrue([
        for pattern in local._listings[key][0].listing_filter.matching :
        can(regex(pattern, version.listing_resource_version))
        ]) && !anytrue([
        for pattern in local._listings[key][0].listing_filter.excluding :
        can(regex(pattern, version.listing_resource_version))
      ])
    ]
  }
  _newest_versions = {
    for key, fitting in local._fitting_versions : key => try(
      [
        for version in fitting : version.listing_resource_version
        if version.time_published == reverse(sort(fitting[*].time_published))[0]
      ][0],
      null,
    )
  }
}

data "oci_core_app_catalog_listings" "named" {
  for_each = toset([for specs in values(local._listings) : specs[0].listing if !startswith(specs[0].listing, "ocid1.")])

  display_name = each.key

  lifecycle {
    postcondition {
      condition     = length(self.app_catalog_listings) > 0
      error_message = "The marketplace has no image listing named ${jsonencode(each.key)}. Copy its name from the marketplace, or give its OCID (ocid1.appcataloglisting...)."
    }

    postcondition {
      condition     = length(self.app_catalog_listings) <= 1
      error_message = "The marketplace has ${length(self.app_catalog_listings)} image listings named ${jsonencode(each.key)}. Give the OCID of one: ${join(", ", [for listing in self.app_catalog_listings : "${listing.listing_id} (${listing.publisher_name})"])}."
    }
  }
}

data "oci_core_app_catalog_listing_resource_versions" "offered" {
  for_each = local._listings

  listing_id = local._listing_ids[each.key]
}

resource "terraform_data" "listing_version" {
  for_each = local._listings

  input = {
    listing_id = local._listing_ids[each.key]
    version    = local._newest_versions[each.key]
  }

  lifecycle {
    ignore_changes = [input]

    postcondition {
      condition     = self.input.version != null
      error_message = "The listing ${each.value[0].listing} has no version ${each.value[0].listing_filter.name} for this shape. It has: ${join(", ", data.oci_core_app_catalog_listing_resource_versions.offered[each.key].app_catalog_listing_resource_versions[*].listing_resource_version)}."
    }
  }
}

resource "oci_core_app_catalog_listing_resource_version_agreement" "this" {
  for_each = terraform_data.listing_version

  listing_id               = each.value.input.listing_id
  listing_resource_version = each.value.input.version
}

# A subscription is that of one compartment, in which instances are launched: elastic nodes may have another one.
resource "oci_core_app_catalog_subscription" "elastic" {
  for_each = {
    for key, agreed in oci_core_app_catalog_listing_resource_version_agreement.this : key => agreed
    if var.elastic_compartment != null && contains([for user, used in local._listing_keys : used if startswith(user, "pool/")], key)
  }

  compartment_id           = local.elastic_compartment_id
  eula_link                = each.value.eula_link == "" ? null : each.value.eula_link
  listing_id               = each.value.listing_id
  listing_resource_version = each.value.listing_resource_version
  oracle_terms_of_use_link = each.value.oracle_terms_of_use_link
  signature                = each.value.signature
  time_retrieved           = each.value.time_retrieved

  lifecycle {
    ignore_changes = [eula_link, oracle_terms_of_use_link, signature, time_retrieved]
  }
}

resource "oci_core_app_catalog_subscription" "this" {
  for_each = oci_core_app_catalog_listing_resource_version_agreement.this

  compartment_id           = var.compartment_id
  eula_link                = each.value.eula_link == "" ? null : each.value.eula_link # not every listing has one
  listing_id               = each.value.listing_id
  listing_resource_version = each.value.listing_resource_version
  oracle_terms_of_use_link = each.value.oracle_terms_of_use_link
  signature                = each.value.signature
  time_retrieved           = each.value.time_retrieved

  lifecycle {
    # The terms were agreed to when the subscription was created. Later changes of the terms do not end it.
    ignore_changes = [eula_link, oracle_terms_of_use_link, signature, time_retrieved]

    precondition {
      condition = length([
        for chosen in values(terraform_data.listing_version) : chosen
        if chosen.input == terraform_data.listing_version[each.key].input
      ]) == 1
      error_message = "Two images use version ${each.value.listing_resource_version} of the listing ${each.value.listing_id} but specify it in two ways. Set listing and listing_version to the same values in both."
    }
  }
}
