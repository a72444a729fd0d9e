"""What happens to instances behind the API.

The checks before a launch (shape, image, limits, capacity, addresses), the rows of a launch, the life cycle, instance
pools and custom images. May import `auth`, `state` and below, but not `bastion`.
"""
