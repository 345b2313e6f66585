"""Ad hoc SQL over topics and Delta tables: shared by `headwater sql` and notebooks."""
