--[[
  What shows how a stream or a group stands: the same for a call about one and for a call about several.
  stream(K) and group(K, name) return what hw_stream_info and hw_group_info reply, or nil for no group.
]]
local looks = {}
