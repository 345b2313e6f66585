"""The exactly-once topic sink: the driver's part, the tasks' part, the fence."""
