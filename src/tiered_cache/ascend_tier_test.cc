// ascend_tier
