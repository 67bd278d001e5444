//! The policies of an [`Origin`], made once more.

use crate::file::document;
use crate::file::secrets::Readers;
use crate::flags::policies_again;
use crate::origin::Origin;
use crate::policies::Policies;

impl Origin {
    /// The same policies once more. `None` if only the path of their file is known.
    ///
    /// # Errors
    ///
    /// What is wrong, a sentence each: for example, the salt of the store cannot be read.
    pub fn policies(&self) -> Result<Option<Policies>, Vec<String>> {
        match self {
            Self::Flags(flags) => policies_again(flags).map(Some).map_err(|mistake| vec![mistake]),
            Self::File(file) if !file.has_texts() => Ok(None),
            Self::File(file) => document::read_again(file, Readers::OfFile).map(Some),
        }
    }
}
