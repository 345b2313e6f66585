"""Protocol Buffers: `.proto` files as text and as descriptors, and the effect of their changes on readers.

A file is a `FileDescriptorProto` here, protobuf's own model of it. No library reads `.proto` text in Python without
either a native compiler that wants files or losses on the way, hence the small parser.
"""
