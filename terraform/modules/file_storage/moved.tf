# Earlier releases created the file system of every cluster.

moved {
  from = oci_file_storage_file_system.this
  to   = oci_file_storage_file_system.this[0]
}
