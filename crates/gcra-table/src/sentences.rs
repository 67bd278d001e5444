//! Enums of the mistakes that can be made, each with its sentence.

/// Makes an enum. The sentence of a variant is its documentation and what it displays.
macro_rules! sentences {
    ($(#[$enum:meta])* pub enum $name:ident {
        $($(#[$more:meta])* $variant:ident $({ $($field:ident: $type:ty),* })?
            => $sentence:literal $(, $argument:expr)*;)*
    }) => {
        $(#[$enum])*
        pub enum $name {
            $(
                #[doc = concat!($sentence, ".")]
                $(#[$more])*
                $variant $({
                    $(#[allow(missing_docs, reason = "the sentence says it")] $field: $type),*
                })?,
            )*
        }

        impl std::fmt::Display for $name {
            #[allow(unused_variables, reason = "not each field is in the sentence")]
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    $(Self::$variant $({ $($field),* })? => write!(f, $sentence $(, $argument)*),)*
                }
            }
        }
    };
}

pub(crate) use sentences;
