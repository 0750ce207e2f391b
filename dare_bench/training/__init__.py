"""The core's side of training: settings, rows, and the driver that hands both to a method; ``trainers`` has the methods
(plugins that know neither engine nor files)."""
