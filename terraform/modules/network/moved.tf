# Earlier releases created the network of every cluster, always with a public subnet.

moved {
  from = oci_core_vcn.this
  to   = oci_core_vcn.this[0]
}

moved {
  from = oci_core_subnet.public
  to   = oci_core_subnet.public[0]
}

moved {
  from = oci_core_subnet.private
  to   = oci_core_subnet.private[0]
}

moved {
  from = oci_core_internet_gateway.this
  to   = oci_core_internet_gateway.this[0]
}

moved {
  from = oci_core_nat_gateway.this
  to   = oci_core_nat_gateway.this[0]
}

moved {
  from = oci_core_service_gateway.this
  to   = oci_core_service_gateway.this[0]
}

moved {
  from = oci_core_route_table.public
  to   = oci_core_route_table.public[0]
}

moved {
  from = oci_core_route_table.private
  to   = oci_core_route_table.private[0]
}

moved {
  from = oci_core_security_list.public
  to   = oci_core_security_list.public[0]
}

moved {
  from = oci_core_security_list.private
  to   = oci_core_security_list.private[0]
}
