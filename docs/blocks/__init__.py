"""What generated parts of the documents are made of: functions that return Markdown."""
