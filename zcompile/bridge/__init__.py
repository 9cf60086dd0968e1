"""Where FX graphs and schedules meet: capture reads graphs, emit writes them."""
