"""From a function or a module of a framework to an `Exported`, and the whole job of an export."""
