"""Protocol Buffers: `.proto` files as text and as descriptors, and the effect of their changes on readers.

A file is represented by a `FileDescriptorProto`, protobuf's own model. In Python, libraries that read `.proto` text
either need a native compiler that reads files from disk, or lose information; hence the small parser.
"""
