"""Files and folders on local disks, HDFS and object stores, read and written from Python without a JVM."""
