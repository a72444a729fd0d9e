"""What happens to instances behind the API: admission (shapes, images, limits, capacity, addresses), the rows of a launch, the life
cycle, instance pools, custom images. May import `auth`, `state` and below; not `bastion`, and not `api`.
"""
