"""Protocol Buffers: `.proto` files as text and as descriptors, and what a change of one means to readers.

A file is a `FileDescriptorProto` here, protobuf's own model of it. No library reads `.proto` text in Python without
either a native compiler that wants files or losses on the way, hence the small parser.
"""
