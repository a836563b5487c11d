"""`tapegrad.vmap` of compiled functions: one compiled loop over the items of a batch."""
