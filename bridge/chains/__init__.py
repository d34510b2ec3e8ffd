"""An `Exported` and the chain of its VJPs, order by order."""
