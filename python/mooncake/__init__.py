"""A tiered KV-cache store: DRAM and Ascend NPU memory of many hosts as one pool of keys and values.

    from mooncake.store import MooncakeDistributedStore

Importing starts no threads and needs no other package.
"""
