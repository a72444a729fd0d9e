"""Container images that all jobs share: `gpucluster-image request`, as root on the controller.

One JSON object on standard input, one on standard output. Standard error reports progress, line by line.

    {"operation": "image.import", "arguments": {"uri", "user", "pool"?, "name"?, "force"?}}  -> {"image": I, "changed"}
    {"operation": "image.list"}                                                             -> {"images": [I]}
    {"operation": "image.remove", "arguments": {"name"}}                                    -> {"name"}
    I = {"name", "path", "size": bytes, "created_at", "uri", "user"}

It exits with 0 when it is done, with 1 when it failed, with 2 when it refuses and nothing was changed.

An import is a job of the named user: the registry gets their credentials, and foreign files are unpacked with their
rights and not with root's. The job writes into a directory that belongs to the user and that no other user can read.
Root takes the finished file from there, checks that it is a squashfs image, and renames it into its place. An import
that was killed leaves a directory, which the next import of this name deletes. If the requester ends (Ctrl-C, a
lost connection), the job is cancelled.
"""
