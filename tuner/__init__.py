"""attn-tune."""
