"""Container images that all jobs share: `gpucluster-image request`, as root on the controller.

One JSON object on standard input, one on standard output; meanwhile standard error tells what happens, line by line.

    {"operation": "image.import", "arguments": {"uri", "user", "pool"?, "name"?, "force"?}}  -> {"image": I, "changed"}
    {"operation": "image.list"}                                                             -> {"images": [I]}
    {"operation": "image.remove", "arguments": {"name"}}                                    -> {"name"}
    I = {"name", "path", "size": bytes, "created_at", "uri", "user"}

It exits with 0 when it is done, with 1 when it failed, with 2 when it refuses and nothing was changed.

An import is a job of the person who is named: their credentials are shown to the registry, and what strangers packed
is unpacked by them and not by root. It writes into a directory of theirs, which nobody else can look into. From there
root takes the finished file, looks whether it is one, and puts it in its place by a rename. An import that is killed
leaves a directory, and the next import of this name cleans it up. Whoever asked and goes away (Ctrl-C, a lost
connection) takes the job along.
"""
