"""The server process: the web application, the forwarder that offers the API to instances, and the recovery at a start. It may import
every other folder of the local cloud except `provider`; nothing imports it.
"""
