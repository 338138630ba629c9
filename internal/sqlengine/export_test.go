package sqlengine

// Statements are all that a verb uses.
var Statements = statements
