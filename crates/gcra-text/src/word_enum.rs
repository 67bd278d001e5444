//! Enums that are read and written as words.

/// Makes an enum, and the word for each of its values.
#[macro_export]
macro_rules! words {
    ($(#[$enum:meta])* $vis:vis enum $name:ident {
        $($(#[$about:meta])* $value:ident = $word:literal,)*
    }) => {
        $(#[$enum])*
        $vis enum $name {
            $($(#[$about])* $value,)*
        }

        impl $name {
            $vis const ALL: [Self; [$($word),*].len()] = [$(Self::$value),*];

            $vis const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$value => $word,)*
                }
            }

            /// The value with this word.
            $vis fn from_word(word: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|value| value.as_str() == word)
            }
        }
    };
}
