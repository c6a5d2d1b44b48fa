package app

import (
	"github.com/weirlake/weir/internal/broker"
	"github.com/weirlake/weir/internal/pipeline"
)

// saslConfig is the log-in as a client of the broker wants it.
func saslConfig(s *pipeline.SASL) broker.SASL {
	out := broker.SASL{Mechanism: s.Mechanism, Username: s.Username.Reveal(), Password: s.Password.Reveal()}
	if o := s.OAuth; o != nil {
		out.OAuth = &broker.OAuth{
			Token: o.Token.Reveal(), TokenFile: o.TokenFile, TokenURL: o.TokenURL, ClientID: o.ClientID,
			ClientSecret: o.ClientSecret.Reveal(), Scope: o.Scope, CAFile: o.CAFile, Extensions: o.Extensions,
		}
	}
	if m := s.MSK; m != nil {
		out.AWS = &broker.AWS{Profile: m.Profile, RoleARN: m.RoleARN, SessionName: m.SessionName}
	}
	return out
}
