//! Transcripts of whole commands.
