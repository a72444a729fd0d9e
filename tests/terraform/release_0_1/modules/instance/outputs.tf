output "instance" {
  description = "The running instance: id, name, private_ip, and public_ip (null without a public address)."
  value = {
    id         = oci_core_instance.this.id
    name       = oci_core_instance.this.display_name
    private_ip = oci_core_instance.this.private_ip
    public_ip  = var.assign_public_ip ? oci_core_instance.this.public_ip : null
  }
}
