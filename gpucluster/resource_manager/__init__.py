"""From Resource Manager to a cluster.yml: the variables of the HPC stack of Oracle's marketplace (oci-hpc).

`oci_hpc.toml` (read by table.py) has every variable of the stack, with the key of cluster.yml that answers it or the
reason why there is none. variable_files.py and tfvars.py read the values, stack.py converts their types, convert.py
decides the keys, draft.py and cluster_file.py write them, migration.py does all of it and accounts for every variable.

And the way for users of the console: form.py is a form for cluster.yml, schema_document.py shows it there, and
stack_files.py makes the file from its values, in Terraform.

May import `spec` and what lies below it. Nothing here reads or writes a file but the table: the command line does.
"""
