variable "availability_domain" {
  description = "Availability domain of the controller, of the home file system and of every pool without its own, by its full name. Null selects the first of the region."
  type        = string
  default     = null
}

variable "cluster_id" {
  description = "Random identity of the cluster, from its first apply: two clusters may have the same name. It is also in freeform_tags. Empty for a cluster that has none yet."
  type        = string
  default     = ""
  nullable    = false

  validation {
    condition     = can(regex("^([0-9a-f]{16})?$", var.cluster_id))
    error_message = "cluster_id must be 16 hexadecimal digits, or empty."
  }
}

variable "cluster_name" {
  description = "Name of the cluster: a DNS label of at most 15 characters. The display names of all created resources begin with it."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z]([a-z0-9-]{0,13}[a-z0-9])?$", var.cluster_name))
    error_message = "cluster_name must be 1 to 15 lower-case letters, digits or hyphens, begin with a letter and not end with a hyphen."
  }
}

variable "compartment_id" {
  description = "OCID of the compartment that holds the cluster."
  type        = string
  nullable    = false

  validation {
    condition     = startswith(var.compartment_id, "ocid1.")
    error_message = "compartment_id must be the OCID of a compartment or tenancy: it begins with \"ocid1.\"."
  }
}

variable "controller" {
  description = "The controller: shape (with ocpus and memory_gb for a flexible one), size of the boot volume in GB and its performance in VPUs per GB, and user_data for cloud-init at the first boot, as plain text."
  type = object({
    shape                   = string
    ocpus                   = optional(number)
    memory_gb               = optional(number)
    boot_volume_gb          = number
    boot_volume_vpus_per_gb = number
    user_data               = optional(string)
    private_ip              = optional(string)
    state_volume = optional(object({
      size_gb = number
      device  = string
    }))
    standby = optional(bool, false)
  })
  nullable = false

  validation {
    condition     = !endswith(var.controller.shape, ".Flex") || (var.controller.ocpus != null && var.controller.memory_gb != null)
    error_message = "controller: a flexible shape (*.Flex) needs ocpus and memory_gb."
  }

  validation {
    condition     = endswith(var.controller.shape, ".Flex") || (var.controller.ocpus == null && var.controller.memory_gb == null)
    error_message = "controller: ocpus and memory_gb can only be given for a flexible shape (*.Flex)."
  }

  validation {
    condition     = var.controller.boot_volume_gb >= 50 && var.controller.boot_volume_gb <= 32768
    error_message = "controller: boot_volume_gb must be from 50 to 32768."
  }

  validation {
    condition     = contains(range(10, 130, 10), var.controller.boot_volume_vpus_per_gb)
    error_message = "controller: boot_volume_vpus_per_gb must be 10, 20, 30 and so on up to 120."
  }
}

variable "defined_tags" {
  description = "Defined tags of all created resources, by \"Namespace.Key\". An empty map leaves them to the tenancy's tag defaults, so removing the last one removes no tag from existing resources."
  type        = map(string)
  default     = {}
  nullable    = false

  validation {
    condition     = alltrue([for key in keys(var.defined_tags) : can(regex("^[^. ]+\\.[^. ]+$", key))])
    error_message = "defined_tags: every key must be a namespace, a dot and a key, such as Operations.CostCenter."
  }
}

variable "elastic_compartment" {
  description = "The compartment of elastic nodes, and of compute clusters with all of their nodes: name creates one in compartment_id, ocid uses one that exists. Null means compartment_id."
  type = object({
    name = optional(string)
    ocid = optional(string)
  })
  default = null

  validation {
    condition     = var.elastic_compartment == null || length(compact([try(var.elastic_compartment.name, null), try(var.elastic_compartment.ocid, null)])) == 1
    error_message = "elastic_compartment must have either name or ocid."
  }

  validation {
    condition     = startswith(try(coalesce(var.elastic_compartment.ocid), "ocid1.compartment."), "ocid1.compartment.")
    error_message = "elastic_compartment: ocid must be the OCID of a compartment: it begins with \"ocid1.compartment.\"."
  }
}

variable "elastic_tags" {
  description = "Defined tags, in addition to defined_tags, of what permissions are restricted to: instance configurations of elastic pools, the instances that are launched from them, and the private subnet; with Kubernetes Engine the instances of all pools."
  type        = map(string)
  default     = {}
  nullable    = false

  validation {
    condition     = alltrue([for key in keys(var.elastic_tags) : can(regex("^[^. ]+\\.[^. ]+$", key))])
    error_message = "elastic_tags: every key must be a namespace, a dot and a key, such as Gpucluster.Cluster."
  }
}

variable "existing_images" {
  description = "OCIDs of the images of hosts that exist and are adopted, by \"controller\", \"login\" and \"pool/<name>\". One is used where no image was selected yet; otherwise another image than theirs could be selected, which would replace them."
  type        = map(string)
  default     = {}
  nullable    = false

  validation {
    condition     = alltrue([for image in values(var.existing_images) : startswith(image, "ocid1.image.")])
    error_message = "existing_images must hold OCIDs of images: they begin with \"ocid1.image.\"."
  }
}

variable "freeform_tags" {
  description = "Free-form tags of all created resources. The tag role is added to all of them (network, storage, bastion, control-plane, node-pool, iam, controller, login, compute), and the tag pool to the resources of a pool."
  type        = map(string)
  default     = {}
  nullable    = false
}

variable "home" {
  description = "The shared home file system. enabled = false: there is none, and no storage is created. export_path is the NFS path of the export. file_system_id is the OCID of an existing file system, which gets a mount target and an export and stays when they are destroyed. server is the address of an existing NFS server: then no storage is created. Without both a file system is created. throughput_gbps is that of the mount target, which exists: null leaves it as it is."
  type = object({
    enabled         = optional(bool, true)
    export_path     = string
    file_system_id  = optional(string)
    server          = optional(string)
    throughput_gbps = optional(number)
  })
  nullable = false

  validation {
    condition     = can(regex("^(/[A-Za-z0-9._-]+)+$", var.home.export_path))
    error_message = "home: export_path must be an absolute path such as /mnt/home."
  }

  validation {
    condition     = contains([1, 20, 40, 80], coalesce(var.home.throughput_gbps, 1))
    error_message = "home: throughput_gbps is 1, 20, 40 or 80."
  }

  validation {
    condition     = var.home.file_system_id == null || var.home.server == null
    error_message = "home: file_system_id and server can't both be given."
  }

  validation {
    condition     = startswith(coalesce(var.home.file_system_id, "ocid1.filesystem."), "ocid1.filesystem.")
    error_message = "home: file_system_id must be the OCID of a file system: it begins with \"ocid1.filesystem.\"."
  }

  validation {
    condition     = var.home.server == null || can(cidrnetmask("${coalesce(var.home.server, "-")}/32"))
    error_message = "home: server must be an IPv4 address such as 10.0.1.10."
  }
}

variable "home_region" {
  description = "Home region of the tenancy, such as us-ashburn-1: dynamic groups and policies are written there."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z0-9]+(-[a-z0-9]+)+$", var.home_region))
    error_message = "home_region must be the identifier of a region, such as us-ashburn-1."
  }
}

variable "iam" {
  description = "The dynamic group of the controller and its permissions: name and description of the group, statements of the policy in the cluster's compartment, in which OCID_OF_THE_CLUSTER stands for a control plane of Kubernetes Engine, and of the one in the tenancy. Null creates none."
  type = object({
    dynamic_group          = string
    description            = string
    compartment_statements = list(string)
    tenancy_statements     = list(string)
  })
  default = null
}

variable "images" {
  description = "The images of hosts, by the user of each: \"controller\", \"login\" and \"pool/<name>\", for the node pools of Kubernetes Engine, too. An image is given by ocid, by listing of the marketplace (its display name or OCID; listing_version is its version in cluster.yml, and listing_filter the regular expressions that select it: of the versions that match all of matching and none of excluding, the newest), by operating_system and version (the newest, or that of the display name name), or by name alone. make_compatible adds the shape to the compatible shapes of a custom image, given by ocid. Another variant, such as aarch64, selects the image again."
  type = map(object({
    ocid             = optional(string)
    name             = optional(string)
    operating_system = optional(string)
    version          = optional(string)
    listing          = optional(string)
    listing_version  = optional(string)
    listing_filter = optional(object({
      name      = string
      matching  = list(string)
      excluding = list(string)
    }), { name = "newest", matching = [], excluding = [] })
    make_compatible = optional(bool, false)
    variant         = optional(string)
  }))
  nullable = false

  validation {
    # Attributes that may be combined.
    condition = alltrue([
      for image in values(var.images) : contains(
        ["ocid", "listing", "listing,listing_version", "operating_system,version", "name,operating_system,version", "name", "name,operating_system"],
        join(",", [for key, value in image : key if !contains(["make_compatible", "listing_filter", "variant"], key) && value != null])
      )
    ])
    error_message = "images: each must have either ocid, or listing (and listing_version), or operating_system and version (and name), or name (and operating_system)."
  }

  validation {
    condition     = alltrue([for image in values(var.images) : !image.make_compatible || image.ocid != null])
    error_message = "images: make_compatible is for an image given by ocid."
  }
}

variable "login" {
  description = "The login nodes, or null for none: names are their display names, <cluster>-login-<n>. Everything else is as for the controller."
  type = object({
    names                   = list(string)
    shape                   = string
    ocpus                   = optional(number)
    memory_gb               = optional(number)
    boot_volume_gb          = number
    boot_volume_vpus_per_gb = number
    user_data               = optional(string)
  })
  default = null

  validation {
    condition = var.login == null || try(
      length(var.login.names) > 0
      && length(distinct(var.login.names)) == length(var.login.names)
      && alltrue([for name in var.login.names : can(regex("^[a-z]([a-z0-9-]{0,45}[a-z0-9])?$", name))]),
      false,
    )
    error_message = "login: names must be different names of lower-case letters, digits or hyphens, such as demo-login-1."
  }

  validation {
    condition     = var.login == null || try(!endswith(var.login.shape, ".Flex") || (var.login.ocpus != null && var.login.memory_gb != null), false)
    error_message = "login: a flexible shape (*.Flex) needs ocpus and memory_gb."
  }

  validation {
    condition     = var.login == null || try(endswith(var.login.shape, ".Flex") || (var.login.ocpus == null && var.login.memory_gb == null), false)
    error_message = "login: ocpus and memory_gb can only be given for a flexible shape (*.Flex)."
  }

  validation {
    condition     = var.login == null || try(var.login.boot_volume_gb >= 50 && var.login.boot_volume_gb <= 32768, false)
    error_message = "login: boot_volume_gb must be from 50 to 32768."
  }

  validation {
    condition     = var.login == null || try(contains(range(10, 130, 10), var.login.boot_volume_vpus_per_gb), false)
    error_message = "login: boot_volume_vpus_per_gb must be 10, 20, 30 and so on up to 120."
  }
}

variable "login_keys" {
  description = "Public halves of the login keys that were generated for users, by user. They are only stored."
  type        = map(string)
  default     = {}
  nullable    = false
}

variable "network" {
  description = "The cloud network: CIDR blocks of the VCN and of its subnets, the CIDR blocks that may reach the cluster by SSH, and the DNS label of the VCN. access is public (the controller is in the public subnet) or bastion (it is in the private one, reached through the OCI Bastion service; there is no public subnet). vcn_id, private_subnet_id and public_subnet_id are the OCIDs of existing ones: then no network is created, the owner manages its security lists, and the CIDR blocks must match the existing ones."
  type = object({
    access              = optional(string, "public")
    vcn_cidr            = string
    public_subnet_cidr  = optional(string)
    private_subnet_cidr = string
    vcn_id              = optional(string)
    public_subnet_id    = optional(string)
    private_subnet_id   = optional(string)
    ssh_allowed_cidrs   = list(string)
    dns_label           = string
  })
  nullable = false

  validation {
    condition     = contains(["public", "bastion"], var.network.access)
    error_message = "network: access must be public or bastion."
  }

  validation {
    condition     = var.network.access != "public" || var.network.public_subnet_cidr != null
    error_message = "network: access public needs public_subnet_cidr."
  }

  validation {
    condition     = var.network.access != "bastion" || length(compact([var.network.public_subnet_cidr, var.network.public_subnet_id])) == 0
    error_message = "network: access bastion has no public subnet: public_subnet_cidr and public_subnet_id must be left out."
  }

  validation {
    condition     = var.network.vcn_id != null || length(compact([var.network.public_subnet_id, var.network.private_subnet_id])) == 0
    error_message = "network: public_subnet_id and private_subnet_id need vcn_id."
  }

  validation {
    condition = var.network.vcn_id == null || (
      var.network.private_subnet_id != null && (var.network.public_subnet_id != null || var.network.access != "public")
    )
    error_message = "network: vcn_id needs private_subnet_id, and for access public also public_subnet_id."
  }

  validation {
    condition = (
      startswith(coalesce(var.network.vcn_id, "ocid1.vcn."), "ocid1.vcn.")
      && startswith(coalesce(var.network.public_subnet_id, "ocid1.subnet."), "ocid1.subnet.")
      && startswith(coalesce(var.network.private_subnet_id, "ocid1.subnet."), "ocid1.subnet.")
    )
    error_message = "network: vcn_id must begin with \"ocid1.vcn.\", public_subnet_id and private_subnet_id with \"ocid1.subnet.\"."
  }

  validation {
    condition = alltrue([
      for cidr in compact([var.network.vcn_cidr, var.network.public_subnet_cidr, var.network.private_subnet_cidr]) :
      can(cidrnetmask(cidr)) && try(cidrhost(cidr, 0) == split("/", cidr)[0], false)
    ])
    error_message = "network: vcn_cidr, public_subnet_cidr and private_subnet_cidr must be IPv4 blocks without host bits, such as 10.0.0.0/16."
  }

  validation {
    condition     = !can(cidrnetmask(var.network.vcn_cidr)) || try(contains(range(16, 31), tonumber(split("/", var.network.vcn_cidr)[1])), true)
    error_message = "network: the prefix length of vcn_cidr must be from /16 to /30."
  }

  validation {
    # A block is inside another if it is not larger and its address, truncated to the other's prefix, is the other's address.
    condition = alltrue([
      for cidr in [var.network.public_subnet_cidr, var.network.private_subnet_cidr] :
      try(
        tonumber(split("/", cidr)[1]) >= tonumber(split("/", var.network.vcn_cidr)[1])
        && cidrhost("${split("/", cidr)[0]}/${split("/", var.network.vcn_cidr)[1]}", 0) == cidrhost(var.network.vcn_cidr, 0),
        true,
      )
    ])
    error_message = "network: public_subnet_cidr and private_subnet_cidr must be inside vcn_cidr."
  }

  validation {
    # Two blocks overlap if both, truncated to the shorter of their prefixes, have the same address.
    condition = try(
      length(distinct([
        for cidr in [var.network.public_subnet_cidr, var.network.private_subnet_cidr] :
        cidrhost("${split("/", cidr)[0]}/${min(
          tonumber(split("/", var.network.public_subnet_cidr)[1]),
          tonumber(split("/", var.network.private_subnet_cidr)[1]),
        )}", 0)
      ])) == 2,
      true,
    )
    error_message = "network: public_subnet_cidr and private_subnet_cidr must not overlap."
  }

  validation {
    condition     = length(var.network.ssh_allowed_cidrs) > 0
    error_message = "network: ssh_allowed_cidrs must have at least one block, or no user can log in. Add the addresses that you log in from."
  }

  validation {
    condition     = alltrue([for cidr in var.network.ssh_allowed_cidrs : !can(regex("/0+$", cidr))])
    error_message = "network: ssh_allowed_cidrs must not contain a block that is the whole internet, such as 0.0.0.0/0 or ::/0. Use the addresses that you log in from."
  }

  validation {
    condition     = alltrue([for cidr in var.network.ssh_allowed_cidrs : can(cidrnetmask(cidr)) || can(regex("/0+$", cidr))])
    error_message = "network: every block of ssh_allowed_cidrs must be an IPv4 block such as 203.0.113.0/24."
  }

  validation {
    condition     = can(regex("^[a-z][a-z0-9]{0,14}$", var.network.dns_label))
    error_message = "network: dns_label must be 1 to 15 lower-case letters or digits and begin with a letter."
  }
}

variable "node_iam" {
  description = "The dynamic group of the instances that join a control plane of Kubernetes Engine, and its permissions: name, description and rule of the group, statements of the policy in the cluster's compartment, in which OCID_OF_THE_CLUSTER stands for the control plane. Null creates none."
  type = object({
    dynamic_group = string
    description   = string
    matching_rule = string
    statements    = list(string)
  })
  default = null
}

variable "oke" {
  description = "The control plane of Oracle Kubernetes Engine, or null for none. kubernetes_version begins with v; endpoint is private (in the private subnet) or public (in the public subnet, for network.ssh_allowed_cidrs). addons are OKE's add-ons by name, with their version; null lets OKE choose and update it. addon_affinity are affinities of the pods of add-ons, as JSON, by the add-on's name. node_pools are the pools whose nodes OKE makes: labels are those of each new node of Kubernetes, user_data replaces OKE's script of the first boot, the rest is as for pools."
  type = object({
    kubernetes_version = string
    endpoint           = optional(string, "private")
    pod_cidr           = optional(string, "10.244.0.0/16")
    service_cidr       = optional(string, "10.96.0.0/16")
    addons             = optional(map(string), {})
    addon_affinity     = optional(map(string), {})
    node_pools = optional(map(object({
      shape                   = string
      ocpus                   = optional(number)
      memory_gb               = optional(number)
      count                   = number
      boot_volume_gb          = number
      capacity_reservation_id = optional(string)
      availability_domain     = optional(string)
      labels                  = optional(map(string), {})
      user_data               = optional(string)
    })), {})
  })
  default = null

  validation {
    condition     = var.oke == null || try(can(regex("^v[0-9]+\\.[0-9]+\\.[0-9]+$", var.oke.kubernetes_version)), false)
    error_message = "The value oke.kubernetes_version must be like v1.34.1."
  }

  validation {
    condition     = var.oke == null || try(contains(["private", "public"], var.oke.endpoint), false)
    error_message = "The value oke.endpoint must be private or public."
  }

  validation {
    condition     = alltrue([for name, pool in try(var.oke.node_pools, {}) : can(regex("^[a-z]([a-z0-9-]{0,30}[a-z0-9])?$", name))])
    error_message = "oke.node_pools: every name must be 1 to 32 lower-case letters, digits or hyphens, begin with a letter and not end with a hyphen."
  }

  validation {
    condition     = alltrue([for name, pool in try(var.oke.node_pools, {}) : pool.count >= 0 && floor(pool.count) == pool.count])
    error_message = "oke.node_pools: count must be a whole number, 0 or more."
  }

  validation {
    condition     = alltrue([for name, pool in try(var.oke.node_pools, {}) : endswith(pool.shape, ".Flex") == (pool.ocpus != null) && (pool.ocpus == null) == (pool.memory_gb == null)])
    error_message = "oke.node_pools: a flexible shape (*.Flex) needs ocpus and memory_gb, and no other has them."
  }
}

variable "origin" {
  description = "Who made the cluster, and where: a tag of the controller, the network and the file system. Empty if that is not known."
  type        = string
  default     = ""
  nullable    = false
}

variable "pools" {
  description = "Pools of compute nodes by name. kind is how a pool is built: cluster_network (permanent RDMA nodes), gpu_memory_cluster (hosts of the rack memory_fabric_id), compute_cluster (RDMA nodes that are created and removed) or instances (no RDMA). count is the number of permanent nodes, max_count the number that the pool may grow to. node_names are the names of the permanent nodes that are created individually; a cluster network and a GPU memory cluster name their members themselves. rdma_plugins are the agent plugins that are enabled when rdma is true, disabled_plugins those that are disabled. availability_domain is that of the pool; null means that of the cluster. baked_image_id is the OCID of the image from which elastic nodes are launched, ready to join; null means the image of the permanent nodes. platform are firmware settings of a bare metal shape: its type, NUMA nodes per socket (NPS0, NPS1, NPS2, NPS4) and simultaneous multi-threading. node_images are the OCIDs of the images of single nodes that Terraform creates, by name, while an image rolls through the pool; the others have that of the pool. launch_image_id is the image of new elastic nodes meanwhile, where none is baked. Boot volume and user_data are as for the controller."
  type = map(object({
    kind                    = string
    shape                   = string
    ocpus                   = optional(number)
    memory_gb               = optional(number)
    count                   = number
    max_count               = number
    node_names              = list(string)
    boot_volume_gb          = number
    boot_volume_vpus_per_gb = number
    capacity_reservation_id = optional(string)
    memory_fabric_id        = optional(string)
    rdma                    = bool
    rdma_plugins            = list(string)
    disabled_plugins        = optional(list(string), [])
    platform = optional(object({
      type                  = string
      numa_nodes_per_socket = optional(string)
      smt                   = optional(bool)
    }))
    user_data           = optional(string)
    availability_domain = optional(string)
    baked_image_id      = optional(string)
    node_images         = optional(map(string), {})
    launch_image_id     = optional(string)
  }))
  default  = {}
  nullable = false

  validation {
    condition     = alltrue([for name, pool in var.pools : can(regex("^[a-z]([a-z0-9-]{0,30}[a-z0-9])?$", name))])
    error_message = "pools: every name must be 1 to 32 lower-case letters, digits or hyphens, begin with a letter and not end with a hyphen."
  }

  validation {
    condition     = alltrue([for name, pool in var.pools : contains(["cluster_network", "compute_cluster", "gpu_memory_cluster", "instances"], pool.kind)])
    error_message = "pools: kind must be cluster_network, compute_cluster, gpu_memory_cluster or instances."
  }

  validation {
    condition     = alltrue([for name, pool in var.pools : pool.count >= 0 && floor(pool.count) == pool.count && floor(pool.max_count) == pool.max_count])
    error_message = "pools: count and max_count must be whole numbers, 0 or more."
  }

  validation {
    condition     = alltrue([for name, pool in var.pools : pool.count <= pool.max_count])
    error_message = "pools: count must not be greater than max_count."
  }

  validation {
    # Another rule reports an invalid count.
    condition = alltrue([
      for name, pool in var.pools :
      contains(["cluster_network", "gpu_memory_cluster"], pool.kind) || !contains(range(pool.max_count + 1), pool.count) || length(pool.node_names) == pool.count
    ])
    error_message = "pools: the number of node_names must be count."
  }

  validation {
    condition = alltrue([
      for name, pool in var.pools :
      length(distinct(pool.node_names)) == length(pool.node_names) && alltrue([for node in pool.node_names : can(regex("^[a-z]([a-z0-9-]{0,45}[a-z0-9])?$", node))])
    ])
    error_message = "pools: node_names must be different names of lower-case letters, digits or hyphens, such as gpu-1."
  }

  validation {
    condition     = alltrue([for name, pool in var.pools : pool.kind != "cluster_network" || (pool.count == pool.max_count && pool.count > 0)])
    error_message = "pools: a cluster_network has permanent nodes only: count must be 1 or more, and max_count equal to it. Use kind compute_cluster for nodes that are created and removed."
  }

  validation {
    condition     = alltrue([for name, pool in var.pools : pool.kind != "gpu_memory_cluster" || (pool.count == pool.max_count && pool.count > 0)])
    error_message = "pools: a gpu_memory_cluster has permanent nodes only: count must be 1 or more, and max_count equal to it."
  }

  validation {
    condition     = alltrue([for name, pool in var.pools : (pool.kind == "gpu_memory_cluster") == startswith(coalesce(pool.memory_fabric_id, "none"), "ocid1.computegpumemoryfabric.")])
    error_message = "pools: memory_fabric_id must be the OCID of a GPU memory fabric, for kind gpu_memory_cluster alone: it begins with \"ocid1.computegpumemoryfabric.\"."
  }

  validation {
    condition     = alltrue([for name, pool in var.pools : pool.rdma == (pool.kind != "instances")])
    error_message = "pools: rdma must be true for kind cluster_network, compute_cluster and gpu_memory_cluster, and false for kind instances."
  }

  validation {
    condition     = alltrue([for name, pool in var.pools : !endswith(pool.shape, ".Flex") || (pool.ocpus != null && pool.memory_gb != null)])
    error_message = "pools: a flexible shape (*.Flex) needs ocpus and memory_gb."
  }

  validation {
    condition     = alltrue([for name, pool in var.pools : endswith(pool.shape, ".Flex") || (pool.ocpus == null && pool.memory_gb == null)])
    error_message = "pools: ocpus and memory_gb can only be given for a flexible shape (*.Flex)."
  }

  validation {
    condition     = alltrue([for name, pool in var.pools : pool.boot_volume_gb >= 50 && pool.boot_volume_gb <= 32768])
    error_message = "pools: boot_volume_gb must be from 50 to 32768."
  }

  validation {
    condition     = alltrue([for name, pool in var.pools : contains(range(10, 130, 10), pool.boot_volume_vpus_per_gb)])
    error_message = "pools: boot_volume_vpus_per_gb must be 10, 20, 30 and so on up to 120."
  }

  validation {
    condition     = alltrue([for name, pool in var.pools : startswith(coalesce(pool.capacity_reservation_id, "ocid1.capacityreservation."), "ocid1.capacityreservation.")])
    error_message = "pools: capacity_reservation_id must be the OCID of a capacity reservation: it begins with \"ocid1.capacityreservation.\"."
  }

  validation {
    condition = alltrue([
      for name, pool in var.pools :
      contains(["NPS0", "NPS1", "NPS2", "NPS4"], try(coalesce(pool.platform.numa_nodes_per_socket), "NPS1"))
    ])
    error_message = "pools: numa_nodes_per_socket must be NPS0, NPS1, NPS2 or NPS4."
  }

  validation {
    condition     = alltrue([for name, pool in var.pools : startswith(coalesce(pool.baked_image_id, "ocid1.image."), "ocid1.image.")])
    error_message = "pools: baked_image_id must be the OCID of an image: it begins with \"ocid1.image.\"."
  }

  validation {
    condition     = alltrue([for name, pool in var.pools : pool.availability_domain != ""])
    error_message = "pools: availability_domain must not be empty; leave it out for the domain of the cluster."
  }

  validation {
    # The members of a cluster network are permanent, and are configured after their launch.
    condition     = alltrue([for name, pool in var.pools : pool.baked_image_id == null || pool.max_count > pool.count])
    error_message = "pools: baked_image_id is for pools whose max_count is greater than their count."
  }
}

variable "recorded" {
  description = "What the hosts have reported of themselves: host_keys are ssh host keys by OCID, certificates those of the cluster's CAs by name, secrets the generations of its secrets by name, physical_hosts the cloud's ids of the instances' physical hosts by OCID, reported_hosts what is known of physical hosts that were reported as bad, as JSON by their ids. They are only stored."
  type = object({
    host_keys      = optional(map(string), {})
    certificates   = optional(map(string), {})
    secrets        = optional(map(string), {})
    physical_hosts = optional(map(string), {})
    reported_hosts = optional(map(string), {})
  })
  default  = {}
  nullable = false
}

variable "region" {
  description = "Region of the cluster, such as us-ashburn-1."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z0-9]+(-[a-z0-9]+)+$", var.region))
    error_message = "region must be the identifier of a region, such as us-ashburn-1."
  }
}

variable "release" {
  description = "Version of gpucluster. It is only stored, for other machines that read the state."
  type        = string
  default     = ""
  nullable    = false
}

variable "rollouts" {
  description = "Images that roll through pools: what gpucluster stores of each between two steps, as JSON by pool. They are only stored."
  type        = map(string)
  default     = {}
  nullable    = false
}

variable "service" {
  description = "Which of the hosts that can be the controller is in service (host: controller or standby), the address that moves with the service (address), whether a failover to that host has begun and not ended (begun), and whether the other one is like it (standby: current or behind)."
  type        = map(string)
  default     = {}
  nullable    = false
}

variable "shares" {
  description = "Further shares, by name. export_path, file_system_id and server as those of home. mount_target: \"home\" exports a share by the mount target of the shared home, \"own\" by one of its own. read_only: the export lets no host write."
  type = map(object({
    export_path     = string
    file_system_id  = optional(string)
    server          = optional(string)
    mount_target    = optional(string, "home")
    read_only       = optional(bool, false)
    throughput_gbps = optional(number)
  }))
  default  = {}
  nullable = false

  validation {
    condition     = alltrue([for share in var.shares : can(regex("^(/[A-Za-z0-9._-]+)+$", share.export_path))])
    error_message = "shares: export_path must be an absolute path such as /data."
  }

  validation {
    condition     = alltrue([for share in var.shares : share.file_system_id == null || share.server == null])
    error_message = "shares: file_system_id and server can't both be given."
  }

  validation {
    condition     = alltrue([for share in var.shares : startswith(coalesce(share.file_system_id, "ocid1.filesystem."), "ocid1.filesystem.")])
    error_message = "shares: file_system_id must be the OCID of a file system: it begins with \"ocid1.filesystem.\"."
  }

  validation {
    condition     = alltrue([for share in var.shares : share.server == null || can(cidrnetmask("${coalesce(share.server, "-")}/32"))])
    error_message = "shares: server must be an IPv4 address such as 10.0.1.10."
  }

  validation {
    condition     = alltrue([for share in var.shares : contains([1, 20, 40, 80], coalesce(share.throughput_gbps, 1))])
    error_message = "shares: throughput_gbps is 1, 20, 40 or 80."
  }

  validation {
    condition     = alltrue([for share in var.shares : contains(["home", "own"], share.mount_target)])
    error_message = "shares: mount_target is home or own."
  }
}

variable "ssh_authorized_keys" {
  description = "Public keys that may log in as the default user of the image. They are read at the first boot; a later change affects new instances only."
  type        = list(string)
  nullable    = false

  validation {
    condition     = length(var.ssh_authorized_keys) > 0
    error_message = "ssh_authorized_keys must hold at least one key, or no user can log in."
  }

  validation {
    condition     = alltrue([for key in var.ssh_authorized_keys : can(regex("^[a-z0-9@.-]+ [A-Za-z0-9+/=]+( [^\\n]*)?$", key))])
    error_message = "ssh_authorized_keys must be OpenSSH public keys, one per line, such as \"ssh-ed25519 AAAA... name\"."
  }
}

variable "tenancy_id" {
  description = "OCID of the tenancy, to list its availability domains."
  type        = string
  nullable    = false

  validation {
    condition     = startswith(var.tenancy_id, "ocid1.tenancy.")
    error_message = "tenancy_id must be the OCID of a tenancy: it begins with \"ocid1.tenancy.\"."
  }
}
