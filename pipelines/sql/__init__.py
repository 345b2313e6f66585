"""Ad hoc SQL over topics and Delta tables."""
