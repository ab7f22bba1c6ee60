//! The text as tokens with places, and a cursor over the tokens of one statement.

use std::ops::{ControlFlow, Range};

use sqlparser::ast::{self, VisitMut, VisitorMut};
use sqlparser::dialect::PostgreSqlDialect;
use sqlparser::keywords::Keyword;
use sqlparser::parser::{Parser, ParserError};
use sqlparser::tokenizer::{Location, Token, TokenWithSpan, Tokenizer};

use crate::error::{Result, SqlError};

/// The dialect of everything that sqlparser reads.
pub(super) static DIALECT: PostgreSqlDialect = PostgreSqlDialect {};

/// Nesting that a statement may have; above it a parser's stack would be at risk.
const NESTING: usize = 80;

/// A whole script: text and tokens.
pub(super) struct Source<'a> {
    text: &'a str,
    tokens: Vec<TokenWithSpan>,
    /// Byte offset of each character, and of the end.
    bytes: Vec<usize>,
    /// Character offset of each line.
    lines: Vec<usize>,
}

impl<'a> Source<'a> {
    pub(super) fn new(text: &'a str) -> Result<Self> {
        let bytes = text.char_indices().map(|(i, _)| i).chain([text.len()]).collect();
        let breaks = text.chars().enumerate().filter(|(_, c)| *c == '\n').map(|(i, _)| i + 1);
        let lines = std::iter::once(0).chain(breaks).collect();
        let mut source = Self { text, tokens: Vec::new(), bytes, lines };
        source.tokens = Tokenizer::new(&DIALECT, text)
            .tokenize_with_location()
            .map_err(|e| SqlError::syntax(lower_first(&e.message)).at(source.char_at(e.location) + 1))?;
        Ok(source)
    }

    /// The statements, as ranges of tokens without the semicolons.
    pub(super) fn statements(&self) -> Vec<Range<usize>> {
        let (mut ranges, mut start) = (Vec::new(), 0);
        for (i, token) in self.tokens.iter().enumerate() {
            if token.token == Token::SemiColon {
                ranges.push(start..i);
                start = i + 1;
            }
        }
        ranges.push(start..self.tokens.len());
        ranges.retain(|range| self.tokens[range.clone()].iter().any(|t| is_significant(&t.token)));
        ranges
    }

    pub(super) fn cursor(&'a self, range: Range<usize>) -> Cursor<'a> {
        let significant: Vec<usize> = range.filter(|i| is_significant(&self.tokens[*i].token)).collect();
        let end = significant.len();
        Cursor { source: self, significant, at: 0, end }
    }

    fn char_at(&self, location: Location) -> usize {
        let line = usize::try_from(location.line).unwrap_or(1).max(1) - 1;
        let column = usize::try_from(location.column).unwrap_or(1).max(1) - 1;
        let last = self.bytes.len() - 1;
        self.lines.get(line).map_or(last, |start| (start + column).min(last))
    }

    fn slice(&self, chars: Range<usize>) -> &'a str {
        &self.text[self.bytes[chars.start]..self.bytes[chars.end.max(chars.start)]]
    }
}

fn is_significant(token: &Token) -> bool {
    !matches!(token, Token::Whitespace(_) | Token::EOF)
}

/// Reads the tokens of one statement from left to right; its end can be moved in to cut off trailing clauses.
#[derive(Clone)]
pub(super) struct Cursor<'a> {
    source: &'a Source<'a>,
    /// Indices of tokens that are neither space nor comment.
    significant: Vec<usize>,
    at: usize,
    end: usize,
}

impl<'a> Cursor<'a> {
    /// The token `ahead` of the next.
    pub(super) fn peek_at(&self, ahead: usize) -> Option<&'a Token> {
        let i = self.at + ahead;
        (i < self.end).then(|| &self.source.tokens[self.significant[i]].token)
    }

    /// The next token.
    pub(super) fn peek(&self) -> Option<&'a Token> {
        self.peek_at(0)
    }

    /// The token `back` from the end: 0 is the last.
    pub(super) fn peek_back(&self, back: usize) -> Option<&'a Token> {
        let i = self.end.checked_sub(back + 1).filter(|i| *i >= self.at)?;
        Some(&self.source.tokens[self.significant[i]].token)
    }

    /// Moves the end in by `count` tokens.
    pub(super) fn cut(&mut self, count: usize) {
        self.end = self.end.saturating_sub(count).max(self.at);
    }

    /// The part from `back` tokens before the end to the end, as a cursor of its own.
    pub(super) fn tail(&self, back: usize) -> Self {
        Self { at: self.end.saturating_sub(back).max(self.at), ..self.clone() }
    }

    pub(super) fn is_done(&self) -> bool {
        self.at >= self.end
    }

    pub(super) fn remaining(&self) -> usize {
        self.end - self.at
    }

    pub(super) fn next(&mut self) -> Option<&'a Token> {
        let token = self.peek()?;
        self.at += 1;
        Some(token)
    }

    /// Whether the token `ahead` is the word (unquoted, any case).
    pub(super) fn is_word(&self, ahead: usize, word: &str) -> bool {
        is_word(self.peek_at(ahead), word)
    }

    /// Passes the words if they are next.
    pub(super) fn eat(&mut self, words: &str) -> bool {
        let mut count = 0;
        for word in words.split(' ') {
            if !self.is_word(count, word) {
                return false;
            }
            count += 1;
        }
        self.at += count;
        true
    }

    pub(super) fn eat_token(&mut self, token: &Token) -> bool {
        let found = self.peek() == Some(token);
        self.at += usize::from(found);
        found
    }

    /// Passes the words or says that they are missing.
    pub(super) fn expect(&mut self, words: &str) -> Result<()> {
        if self.eat(words) { Ok(()) } else { Err(self.expected(words)) }
    }

    pub(super) fn expect_token(&mut self, token: &Token) -> Result<()> {
        if self.eat_token(token) { Ok(()) } else { Err(self.expected(&format!("\"{token}\""))) }
    }

    /// Says that there must be nothing more.
    pub(super) fn finish(&self) -> Result<()> {
        if self.is_done() { Ok(()) } else { Err(self.expected("the end of the statement")) }
    }

    /// The error that `what` should stand at the cursor.
    pub(super) fn expected(&self, what: &str) -> SqlError {
        let found = match self.peek() {
            Some(token) => format!("\"{token}\""),
            None => "the end of the statement".to_owned(),
        };
        SqlError::syntax(format!("expected {what}, found {found}")).at(self.position())
    }

    /// The text of the next token as written, for messages.
    pub(super) fn found(&self) -> String {
        self.peek().map_or_else(|| "the end of the statement".to_owned(), |token| token.to_string())
    }

    /// Where the next token is, in characters from 1.
    pub(super) fn position(&self) -> usize {
        self.start() + 1
    }

    /// Where the next token starts, in characters from 0; at the end, the end of the last token.
    pub(super) fn start(&self) -> usize {
        if self.is_done() { self.end_of(self.end) } else { self.start_of(self.at) }
    }

    fn start_of(&self, i: usize) -> usize {
        self.source.char_at(self.source.tokens[self.significant[i]].span.start)
    }

    fn end_of(&self, i: usize) -> usize {
        match i.checked_sub(1).and_then(|i| self.significant.get(i)) {
            Some(token) => self.source.char_at(self.source.tokens[*token].span.end),
            None => 0,
        }
    }

    /// What is left as it is written.
    pub(super) fn text(&self) -> &'a str {
        self.source.slice(self.start()..self.end_of(self.end).max(self.start()))
    }

    /// What was written from `from` (characters from 0) up to the cursor.
    pub(super) fn text_since(&self, from: usize) -> &'a str {
        self.source.slice(from..self.end_of(self.at).max(from))
    }

    /// A name: an identifier, folded as PostgreSQL does.
    pub(super) fn ident(&mut self, what: &str) -> Result<String> {
        match self.peek() {
            Some(Token::Word(word)) => {
                self.at += 1;
                Ok(if word.quote_style.is_some() { word.value.clone() } else { word.value.to_lowercase() })
            }
            _ => Err(self.expected(what)),
        }
    }

    /// A relation's name; the schema `public` and the database `weir` are accepted.
    pub(super) fn name(&mut self, what: &str) -> Result<String> {
        let position = self.position();
        let mut parts = vec![self.ident(what)?];
        while self.eat_token(&Token::Period) {
            parts.push(self.ident(what)?);
        }
        unqualify(&parts).map_err(|e| e.at(position))
    }

    /// Parses with sqlparser and passes what it took.
    pub(super) fn parse<T>(&mut self, parse: impl FnOnce(&mut Parser<'_>) -> Result<T, ParserError>) -> Result<T> {
        let parts: Vec<usize> = (self.at..self.end).filter(|i| !self.is_table_argument(*i)).collect();
        let tokens = parts.iter().map(|i| self.source.tokens[self.significant[*i]].clone()).collect();
        let mut parser = Parser::new(&DIALECT).with_recursion_limit(NESTING).with_tokens_with_locations(tokens);
        let parsed = parse(&mut parser).map_err(|e| self.parser_error(&e))?;
        self.at = parts.get(parser.index()).copied().unwrap_or(self.end);
        Ok(parsed)
    }

    /// Whether the token is the word TABLE in `TUMBLE(TABLE t, …)`, which sqlparser does not read as an argument.
    fn is_table_argument(&self, i: usize) -> bool {
        let token = |i: usize| &self.source.tokens[self.significant[i]].token;
        let function = |name| is_word(Some(token(i - 2)), name);
        i >= self.at + 2
            && is_word(Some(token(i)), "TABLE")
            && *token(i - 1) == Token::LParen
            && ["TUMBLE", "HOP", "SESSION", "CUMULATE"].into_iter().any(function)
    }

    /// An expression as it is written.
    pub(super) fn expr(&mut self) -> Result<String> {
        let start = self.start();
        self.parse(|parser| parser.parse_expr())?;
        Ok(self.text_since(start).to_owned())
    }

    /// A query up to the end.
    pub(super) fn query(&mut self) -> Result<Box<ast::Query>> {
        let mut query = self.parse(|parser| parser.parse_query())?;
        name_window_inputs(&mut query);
        self.finish()?;
        Ok(query)
    }

    fn parser_error(&self, error: &ParserError) -> SqlError {
        let message = match error {
            ParserError::TokenizerError(message) | ParserError::ParserError(message) => message.as_str(),
            ParserError::RecursionLimitExceeded => {
                return SqlError::syntax("the statement is nested too deeply")
                    .hint("split it with WITH … AS or into views")
                    .at(self.position());
            }
        };
        let (message, place) = match message.rsplit_once(" at Line: ") {
            Some((message, place)) => (message, place.split_once(", Column: ")),
            None => (message, None),
        };
        let place = place.and_then(|(line, column)| Some((line.parse().ok()?, column.trim().parse().ok()?)));
        let position = place
            .map_or_else(|| self.end_of(self.end), |(line, column)| self.source.char_at(Location { line, column }));
        let message = lower_first(message).replace("expected: ", "expected ").replace("found: ", "found ");
        SqlError::syntax(message.replace("found EOF", "found the end of the statement")).at(position + 1)
    }
}

/// Turns `TUMBLE(t, …)` into `TUMBLE((SELECT * FROM t), …)`: DataFusion looks for the relations of a statement in its
/// syntax tree, and does not take a function's argument for one.
pub(super) fn name_window_inputs(query: &mut ast::Query) {
    struct Inputs;
    impl VisitorMut for Inputs {
        type Break = ();
        fn pre_visit_table_factor(&mut self, factor: &mut ast::TableFactor) -> ControlFlow<()> {
            if let ast::TableFactor::Table { name, args: Some(args), .. } = factor
                && ["tumble", "hop"].contains(&name.to_string().to_lowercase().as_str())
                && let Some(
                    ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expr))
                    | ast::FunctionArg::ExprNamed { arg: ast::FunctionArgExpr::Expr(expr), .. },
                ) = args.args.first_mut()
                && matches!(expr, ast::Expr::Identifier(_) | ast::Expr::CompoundIdentifier(_))
                && let Ok(mut parser) = Parser::new(&DIALECT).try_with_sql(&format!("SELECT * FROM {expr}"))
                && let Ok(all) = parser.parse_query()
            {
                *expr = ast::Expr::Subquery(all);
            }
            ControlFlow::Continue(())
        }
    }
    let _ = VisitMut::visit(query, &mut Inputs);
}

/// Takes `weir.public.` off a name.
pub(super) fn unqualify(parts: &[String]) -> Result<String> {
    match parts {
        [name] => Ok(name.clone()),
        [schema, name] if schema == "public" => Ok(name.clone()),
        [database, schema, name] if database == "weir" && schema == "public" => Ok(name.clone()),
        _ => Err(SqlError::unsupported(format!("\"{}\" names another schema", parts.join(".")))
            .hint("there is one schema, public; write the name alone")),
    }
}

pub(super) fn is_word(token: Option<&Token>, word: &str) -> bool {
    matches!(token, Some(Token::Word(w)) if w.quote_style.is_none() && w.value.eq_ignore_ascii_case(word))
}

/// Whether a token is the keyword, for lists of keywords.
pub(super) fn keyword(token: Option<&Token>) -> Option<Keyword> {
    match token {
        Some(Token::Word(word)) if word.quote_style.is_none() => Some(word.keyword),
        _ => None,
    }
}

fn lower_first(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |c| c.to_lowercase().chain(chars).collect())
}
